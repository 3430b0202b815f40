// The start: the parts of the page in the order in which a reader meets them.

const data = unpacked(JSON.parse(byId("data").textContent));

async function explorerParts() {
  const { manifest, fault } = await loadManifest();
  for (const id of ["explorer", "compare"]) {
    byId(`${id}-missing`).hidden = manifest !== undefined;
    byId(`${id}-body`).hidden = manifest === undefined;
  }
  if (fault) byId("explorer-fault").textContent = fault;
  if (!manifest) return;
  let comparison;
  fillSelect(byId("compare-dataset"), manifest.datasets.map((one) => [one.name, named(one.title)]));
  const explorer = predictionExplorer(manifest, (dataset) => comparison?.useDataset(dataset));
  comparison = methodComparison(explorer, explorer.chooseDataset);
  await Promise.all([comparison.useDataset(explorer.dataset()), explorer.opened()]);
}

/** Goes to the section of the address once the page has its height, which the explorer changes. */
async function arrive() {
  const asked = view.section;
  let moved = false;
  for (const kind of ["wheel", "touchmove", "keydown"]) addEventListener(kind, () => (moved = true), { once: true, passive: true });
  await explorerParts();
  if (asked && asked === view.section && !moved) byId(asked)?.scrollIntoView({ block: "start", behavior: "instant" });
}

readAddress();
const drawer = runDrawer(data);
comparisonTable(data, (row) => drawer.open(row));
unfinishedRuns(data.unfinished);
drawer.restore();
addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((one) => (one.open = true)));
followAddress();
arrive();
