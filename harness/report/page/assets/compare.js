// Two methods, query by query: where the first wins, where it loses, by how much.

const MARGINS_AT_ONCE = 50;

function methodComparison(explorer, chooseDataset) {
  const controls = ["a", "b", "metric", "side"].map((name) => byId(`compare-${name}`));
  const [pickA, pickB, pickMetric, pickSide] = controls;
  const list = byId("compare-list");
  const more = byId("compare-more");
  let dataset;
  let ranked = [];

  for (const control of controls) control.addEventListener("change", changed);
  byId("compare-dataset").addEventListener("change", (event) => chooseDataset(event.target.value, "compare"));
  byId("compare-swap").addEventListener("click", () => {
    [pickA.value, pickB.value] = [pickB.value, pickA.value];
    changed();
  });
  more.addEventListener("click", () => append());

  function useDataset(wanted) {
    dataset = wanted;
    byId("compare-dataset").value = dataset.name;
    const leading = [...dataset.runs].sort((one, other) => (other.metrics["P@1"] ?? 0) - (one.metrics["P@1"] ?? 0));
    for (const pick of [pickA, pickB]) fillSelect(pick, dataset.runs.map((run) => [run.run, runName(run, dataset)]));
    choose(pickA, look("a"), leading[0]?.run);
    choose(pickB, look("b"), (leading.find((run) => run.run !== pickA.value) ?? leading[0])?.run);
    choose(pickMetric, look("by"), "P@1");
    choose(pickSide, look("side"), "wins");
    return rank();
  }

  function changed() {
    remember({ a: pickA.value, b: pickB.value, by: pickMetric.value, side: pickSide.value }, "compare");
    rank();
  }

  async function rank() {
    const asked = { dataset, a: pickA.value, b: pickB.value };
    const stale = () => asked.dataset !== dataset || asked.a !== pickA.value || asked.b !== pickB.value;
    try {
      const [ofA, ofB] = await Promise.all([hitsOf(dataset, asked.a), hitsOf(dataset, asked.b)]);
      if (stale()) return;
      const all = margins(ofA, ofB, pickMetric.value);
      ranked = sided(all, pickSide.value);
      summarise(all, ofA, ofB);
    } catch (fault) {
      if (stale()) return;
      ranked = [];
      byId("compare-summary").textContent = fault.message;
      byId("compare-bar").replaceChildren();
    }
    list.replaceChildren();
    append();
  }

  function summarise(all, ofA, ofB) {
    const metric = pickMetric.value;
    const [wins, losses] = [all.filter((one) => one.margin > 0).length, all.filter((one) => one.margin < 0).length];
    const ties = all.length - wins - losses;
    const mean = (hits) => percent([...hits].reduce((sum, mask) => sum + share(mask, metric), 0) / hits.length);
    const [nameA, nameB] = [pickA, pickB].map((pick) => pick.selectedOptions[0].textContent);
    byId("compare-summary").replaceChildren(
      el("b", { text: nameA }), ` (${mean(ofA)}) against `, el("b", { text: nameB }), ` (${mean(ofB)}) at ${metric}: `,
      el("b", { class: "win", text: count(wins, "win") }), ", ",
      el("b", { text: count(ties, "tie") }), ", ",
      el("b", { class: "loss", text: grouped.format(losses) + (losses === 1 ? " loss" : " losses") }), ".",
    );
    const parts = [["win", wins], ["tie", ties], ["loss", losses]].map(([kind, number]) => {
      const piece = el("span", { class: kind });
      piece.style.setProperty("--share", number / Math.max(all.length, 1));
      return piece;
    });
    byId("compare-bar").replaceChildren(...parts);
  }

  function append() {
    const shown = list.children.length;
    list.append(...ranked.slice(shown, shown + MARGINS_AT_ONCE).map(lineOf));
    if (!ranked.length) list.append(el("li", { class: "quiet", text: "No such query." }));
    const left = ranked.length - list.children.length;
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(left, MARGINS_AT_ONCE)} more of ${grouped.format(left)}`;
  }

  function lineOf({ row, margin, a, b }) {
    const text = el("span", { class: "option-text", dir: "auto", text: "…" });
    explorer.texts().want(row).then((found) => (text.textContent = readable(found)), () => (text.textContent = "(no text)"));
    const kind = margin > 0 ? "win" : margin < 0 ? "loss" : "tie";
    return el(
      "li",
      { "data-row": row, "data-margin": margin },
      el(
        "button",
        { type: "button", onclick: () => explorer.visit(row, [...new Set([pickA.value, pickB.value])]) },
        el("span", { class: `margin ${kind}`, text: margin > 0 ? `+${margin}` : String(margin).replace("-", "−") }),
        text,
        el("span", { class: "option-signs" }, hitSigns(a), hitSigns(b)),
      ),
    );
  }

  whenRestored(() => dataset && useDataset(dataset));
  return { useDataset };
}

/** Chooses what the address asks for if there is such an option. */
function choose(select, wanted, otherwise) {
  const options = [...select.options].map((option) => option.value);
  select.value = options.includes(wanted) ? wanted : otherwise;
}

/** The metric of one query, percent. */
const share = (mask, metric) => (metric === "P@1" ? (mask & 1) * 100 : bitCount(mask) * 20);

/** Every query with its margin; what decides among equal margins is the difference in five predictions. */
function margins(ofA, ofB, metric) {
  return Array.from(ofA, (a, row) => {
    const b = ofB[row];
    return { row, a, b, margin: share(a, metric) - share(b, metric), closer: bitCount(a) - bitCount(b) };
  });
}

function sided(all, side) {
  const sign = side === "losses" ? -1 : 1;
  const kept = side === "all" ? all : all.filter((one) => one.margin * sign > 0);
  return kept.sort((one, other) => sign * (other.margin - one.margin || other.closer - one.closer) || one.row - other.row);
}
