// The start: colours, navigation, and the parts of the page in the order in which a reader meets them.

const data = JSON.parse(byId("data").textContent);

function colours() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let asked = stored("harness-theme");

  function apply() {
    const dark = asked ? asked === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
  }
  button.addEventListener("click", () => {
    asked = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    store("harness-theme", asked);
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

// a browser may forbid storage to a page from a disk; the choice is then for this visit only
function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // see above
  }
}

/** Marks the link of the section in sight. */
function navigation() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        for (const other of links.values()) other.removeAttribute("aria-current");
        const link = links.get(target.id);
        link?.setAttribute("aria-current", "true");
        if (link) link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.clientWidth / 2;
      }
    },
    { rootMargin: "-30% 0px -65% 0px" },
  );
  for (const section of document.querySelectorAll("main > section[id]")) seen.observe(section);
}

function figuresAndTables() {
  const dialog = byId("enlarged");
  for (const button of document.querySelectorAll("button.enlarge")) {
    button.addEventListener("click", () => {
      dialog.querySelector(".enlarged-body").replaceChildren(button.querySelector("img").cloneNode());
      dialog.showModal();
    });
  }
  dialog.addEventListener("click", () => dialog.close());

  const tables = [...document.querySelectorAll("#tables details")];
  const all = byId("open-tables");
  const setAll = (open) => tables.forEach((one) => (one.open = open));
  if (tables.length) tables[0].open = true;
  all.hidden = tables.length < 2;
  all.addEventListener("click", () => {
    const open = all.getAttribute("aria-pressed") !== "true";
    all.setAttribute("aria-pressed", String(open));
    all.textContent = open ? "Close all" : "Open all";
    setAll(open);
  });
  addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((one) => (one.open = true)));
}

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

colours();
readAddress();
const drawer = runDrawer(data);
comparisonTable(data, (row) => drawer.open(row));
unfinishedRuns(data.unfinished);
drawer.restore();
figuresAndTables();
offerCopies();
navigation();
followAddress();
arrive();
