// The drawer: everything kept about the runs of one row, a seed at a time.

function runDrawer(data) {
  const drawer = byId("drawer");
  const body = drawer.querySelector(".drawer-body");
  const seeds = byId("drawer-seeds");

  function open(row, name = row.runs[0]) {
    byId("drawer-title").textContent = named(row.method);
    seeds.replaceChildren(
      ...row.runs.map((one) =>
        el("button", { type: "button", text: `seed ${data.runs[one].seed}`, "data-run": one, onclick: () => show(row, one) }),
      ),
    );
    show(row, name);
    if (!drawer.open) drawer.showModal();
    body.scrollTop = 0;
  }

  function show(row, name) {
    const run = data.runs[name];
    for (const button of seeds.children) button.setAttribute("aria-pressed", String(button.dataset.run === name));
    seeds.hidden = row.runs.length < 2;
    byId("drawer-about").textContent = [run.dataset, run.encoder, row.scorer, name].filter(Boolean).join(" · ");
    body.replaceChildren(...drawerParts(run, row));
    remember({ run: name, scorer: row.scorer });
  }

  function restore() {
    const name = look("run");
    const rows = data.datasets.flatMap((dataset) => dataset.rows).filter((row) => row.runs.includes(name));
    const row = rows.find((one) => one.scorer === look("scorer")) ?? rows[0];
    if (row) open(row, name);
    else if (drawer.open) drawer.close();
  }

  byId("close-drawer").addEventListener("click", () => drawer.close());
  drawer.addEventListener("click", (event) => {
    if (event.target === drawer) drawer.close(); // the backdrop
  });
  drawer.addEventListener("close", () => remember({ run: "", scorer: "" }));
  whenRestored(restore);
  return { open, restore };
}

function drawerParts(run, row) {
  const warnings = (run.warnings ?? []).map((text) => el("p", { class: "warning", text }));
  return [
    ...warnings,
    part("metrics", "Metrics", metricsTable(run, row), binShares(run)),
    part("curves", "Course of the training", ...curveCharts(run.curves ?? {})),
    part("cost", "Cost", costBars(run)),
    part("config", "Configuration", configList(run, row)),
    part("environment", "Environment", pairs([["started", run.started.replace("T", " ")], ...Object.entries(run.environment)])),
  ];
}

const part = (name, title, ...content) =>
  el("section", { "data-part": name }, el("h3", { text: title }), ...content);

/** Metrics down in families, cutoffs across; one block of columns per way of scoring. */
function metricsTable(run, row) {
  const scorers = Object.keys(run.scorers);
  const names = [...new Set(scorers.flatMap((scorer) => Object.keys(run.scorers[scorer])))];
  const families = [...new Set(names.map((name) => name.split("@")[0]))];
  const cutoffs = [...new Set(names.map((name) => name.split("@")[1]))].sort((a, b) => a - b);
  const first = ["P", "PSP", "nDCG"];
  families.sort((a, b) => (first.indexOf(a) + 9) % 9 - (first.indexOf(b) + 9) % 9 || a.localeCompare(b));
  const head = [
    scorers.length > 1
      ? el("tr", {}, el("td"), ...scorers.map((scorer) => el("th", { scope: "colgroup", colspan: cutoffs.length, text: scorer, class: scorer === row.scorer ? "chosen" : null })))
      : null,
    el("tr", {}, el("td"), ...scorers.flatMap(() => cutoffs.map((cutoff) => el("th", { scope: "col", text: `@${cutoff}` })))),
  ];
  const lines = families.map((family) =>
    el("tr", {}, el("th", { scope: "row", text: family }), ...scorers.flatMap((scorer) => cutoffs.map((cutoff) => el("td", { text: percent(run.scorers[scorer][`${family}@${cutoff}`]) })))),
  );
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Metrics" }, el("table", { class: "plain" }, el("thead", {}, ...head), el("tbody", {}, ...lines)));
}

/** What head, torso and tail labels give to a metric. */
function binShares(run) {
  if (!run.bins) return null;
  const shares = ["P@5", "PSP@5"].filter((name) => name in run.bins[0]).map((name) => {
    const known = run.bins.filter((bin) => Number.isFinite(bin[name]));
    const whole = known.reduce((sum, bin) => sum + bin[name], 0);
    const pieces = known.map((bin) => {
      const piece = el("span", { class: `piece ${bin.bin}`, title: `${bin.bin}: ${percent(bin[name])}`, text: `${bin.bin} ${bin[name].toFixed(1)}` });
      piece.style.setProperty("--share", whole ? bin[name] / whole : 0);
      return piece;
    });
    return el("div", { class: "share-row" }, el("span", { text: name }), el("span", { class: "pieces" }, ...pieces));
  });
  return el("div", { class: "shares" }, el("h4", { text: "Share of head, torso and tail labels" }), ...shares);
}

/** One chart per kind of figure: losses together, learning rates together, validation together. */
function curveCharts(curves) {
  const steps = curves.step;
  if (!steps) return [el("p", { class: "quiet", text: "This run kept no curves: it did not train, or it was made before they were kept." })];
  const groups = new Map();
  for (const [name, values] of Object.entries(curves)) {
    if (name === "step") continue;
    const kind = kindOf(name);
    groups.set(kind, [...(groups.get(kind) ?? []), [name.split("/").at(-1), values]]);
  }
  const sorted = [...groups].sort(([a], [b]) => CURVE_ORDER.indexOf(b) - CURVE_ORDER.indexOf(a));
  return [el("div", { class: "charts" }, ...sorted.map(([kind, lines]) => lineChart(kind, steps, lines)))];
}

const CURVE_ORDER = ["Learning rate", "Positives per query", "Validation rows, %", "Loss"];

function kindOf(name) {
  const [family, figure] = name.split("/");
  if (family === "validation") return "Validation rows, %";
  if (family === "lr") return "Learning rate";
  if (figure?.startsWith("loss")) return "Loss";
  if (figure === "positives") return "Positives per query";
  return figure === "pool" ? "Labels in the pool" : name;
}

function costBars(run) {
  const steps = Object.entries(run.timings ?? {}).sort(([, a], [, b]) => b - a);
  const facts = [["in all", duration(run.seconds)]];
  if (run.memory) facts.push(["peak memory", `${run.memory.toFixed(2)} GiB`]);
  if (run.resumed) facts.push(["resumed", count(run.resumed, "time")]);
  for (const part of ["training", "search", "augmentation"]) {
    facts.push(...Object.entries(run[part] ?? {}).map(([name, value]) => [`${part}: ${name}`, value]));
  }
  return el("div", {}, pairs(facts), steps.length ? bars(steps.map(([name, seconds]) => [name, seconds, duration(seconds)])) : null);
}

/** Settings that are not the method's defaults stand first. */
function configList(run, row) {
  const changed = new Set(row.settings.split(", ").map((setting) => setting.split("=")[0]));
  const isChanged = (name) => changed.has(name) || changed.has(name.replace(/^params\./, ""));
  const entries = [...Object.entries(run.config), ["seed", run.seed]];
  const marked = new Set(entries.map(([name]) => name).filter(isChanged));
  entries.sort(([a], [b]) => marked.has(b) - marked.has(a) || a.localeCompare(b));
  return el("div", {}, marked.size ? el("p", { class: "quiet", text: "Marked: not the method's default." }) : null, pairs(entries, marked));
}
