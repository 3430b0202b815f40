// The comparison: one row per group of runs and way of scoring; sorted by a column, filtered by words.

/** Columns besides the metrics; a smaller figure is the better one in those of cost. */
const COSTS = { seconds: "time", memory: "memory" };
const LONG = 40;

function comparisonTable(data, openRun) {
  const table = document.querySelector("#comparison table");
  const [head, body] = [table.tHead, table.tBodies[0]];
  const select = byId("dataset");
  const filter = byId("filter");
  const defaults = byId("defaults");
  let dataset;
  let rows = [];
  let order;

  function show(key) {
    dataset = data.datasets.find((one) => one.key === key) ?? data.datasets[0];
    if (!dataset) return;
    select.value = dataset.key;
    rows = dataset.rows.map((row) => ({ row, words: wordsOf(row), node: null }));
    order = readOrder(look("sort"), dataset);
    defaults.checked = look("defaults", isLong(dataset) ? "1" : "0") === "1";
    byId("comparison-note").textContent = dataset.note;
    byId("defaults-of").textContent = dataset.benchmark ? "settings of the benchmark only" : "default settings only";
    head.replaceChildren(headOf(dataset, sortBy));
    arrange();
  }

  function sortBy(key) {
    const falls = order.key === key ? !order.falls : key !== "method" && !(key in COSTS);
    order = { key, falls };
    remember({ sort: `${falls ? "-" : ""}${key}` }, "comparison");
    arrange();
  }

  function arrange() {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter(
      ({ row, words }) => wanted.every((word) => words.includes(word)) && !(defaults.checked && !row.main),
    );
    kept.sort((one, other) => inOrder(order, one.row, other.row));
    for (const entry of kept) entry.node ??= rowOf(entry.row, dataset, openRun);
    body.replaceChildren(...kept.map((entry) => entry.node));
    if (!kept.length) body.append(el("tr", {}, el("td", { class: "none", colspan: 99, text: "Nothing matches the filter." })));
    for (const metric of dataset.metrics) markBest(metric, kept);
    markColumn(table, dataset, order, rows);
    const all = rows.length;
    byId("shown").textContent = kept.length === all ? count(all, "row") : `${grouped.format(kept.length)} of ${count(all, "row")}`;
  }

  function restore() {
    filter.value = look("filter");
    show(look("dataset"));
  }

  fillSelect(select, data.datasets.map((one) => [one.key, named(one.label)]));
  select.addEventListener("change", () => {
    remember({ dataset: select.value }, "comparison");
    show(select.value);
  });
  filter.addEventListener("input", settled(60, () => {
    remember({ filter: filter.value }, "comparison");
    arrange();
  }));
  defaults.addEventListener("change", () => {
    remember({ defaults: defaults.checked ? "1" : "0" }, "comparison");
    arrange();
  });
  whenRestored(restore);
  restore();
  overview(data, (key) => {
    remember({ dataset: key }, "comparison");
    show(key);
    scrollToSection("comparison");
  });
  if (!data.datasets.length) byId("shown").textContent = "no finished run yet";
}

/** Whether a dataset has so many rows that those of other settings are better asked for. */
const isLong = ({ rows }) => rows.length > LONG && rows.some((row) => row.main) && rows.some((row) => !row.main);

const wordsOf = (row) => [row.method, row.encoder, row.scorer, row.settings || "default"].join(" ").toLowerCase();

/** The order an address asks for, or the first metric from the top. */
function readOrder(text, dataset) {
  const key = text.replace(/^-/, "");
  const known = ["method", "seeds", ...dataset.metrics, ...Object.keys(COSTS)].includes(key);
  return known ? { key, falls: text.startsWith("-") } : { key: dataset.metrics[0] ?? "method", falls: dataset.metrics.length > 0 };
}

function valueOf(row, key) {
  if (key === "seeds") return row.runs.length;
  return key in COSTS ? row[key] : (row.figures[key]?.mean ?? null);
}

/** Rows without a figure come last in either order; equal ones stay in the order of their names. */
function inOrder({ key, falls }, one, other) {
  if (key === "method") {
    const names = one.method.localeCompare(other.method) || wordsOf(one).localeCompare(wordsOf(other));
    return falls ? -names : names;
  }
  const [a, b] = [valueOf(one, key), valueOf(other, key)];
  if (a === null || b === null) return (a === null) - (b === null);
  return falls ? b - a : a - b;
}

function headOf(dataset, sortBy) {
  const cell = (key, text, kind) =>
    el("th", { scope: "col", "data-key": key, "aria-sort": "none", class: kind }, el("button", { type: "button", text, onclick: () => sortBy(key) }));
  return el(
    "tr",
    {},
    cell("method", "method", "words"),
    ...dataset.metrics.map((name) => cell(name, name)),
    ...Object.entries(COSTS).map(([key, text]) => cell(key, text)),
    cell("seeds", "seeds"),
  );
}

function rowOf(row, dataset, openRun) {
  const details = [row.encoder, row.scorer, row.settings].filter(Boolean).join(" · ");
  const name = el(
    "th",
    { scope: "row" },
    el("button", { class: "open-run", type: "button", text: named(row.method), "aria-haspopup": "dialog", onclick: () => openRun(row) }),
    el("span", { class: "details", text: details, title: row.settings || null }),
  );
  return el(
    "tr",
    { "data-run": row.runs[0], "data-scorer": row.scorer },
    name,
    ...dataset.metrics.map((metric) => figureCell(metric, row.figures[metric])),
    el("td", { "data-key": "seconds", text: duration(row.seconds) }),
    el("td", { "data-key": "memory", text: row.memory ? `${row.memory.toFixed(2)} GiB` : "" }),
    el("td", { "data-key": "seeds", text: String(row.runs.length) }),
  );
}

function figureCell(metric, figure) {
  const value = el("span", { class: "value", text: percent(figure.mean) });
  const spread = figure.std === undefined || figure.std === null ? null : el("span", { class: "spread", text: `±${figure.std.toFixed(2)}` });
  return el("td", { "data-key": metric }, value, spread);
}

/** Marks the best figures of the rows in sight and the next ones, as they print: equal ones alike, a column of ties not. */
function markBest(metric, shown) {
  const printed = shown.map(({ row }) => row.figures[metric].mean?.toFixed(2));
  const places = [...new Set(printed.filter(Boolean))].sort((a, b) => b - a);
  const [best, second] = places.length > 1 ? places : [];
  const alone = printed.filter((text) => text === best).length === 1;
  shown.forEach(({ node }, index) => {
    const cell = [...node.cells].find((one) => one.dataset.key === metric);
    cell.classList.toggle("best", best !== undefined && printed[index] === best);
    cell.classList.toggle("second", alone && second !== undefined && printed[index] === second);
  });
}

/** Says which column sorts, and lays a bar under its figures: from the least (empty) to the largest of the dataset. */
function markColumn(table, dataset, { key, falls }, rows) {
  for (const cell of table.tHead.rows[0].cells) {
    cell.setAttribute("aria-sort", cell.dataset.key !== key ? "none" : falls ? "descending" : "ascending");
  }
  const values = rows.map(({ row }) => valueOf(row, key)).filter((value) => typeof value === "number");
  const [least, most] = [Math.min(...values), Math.max(...values)];
  for (const { row, node } of rows) {
    if (!node) continue;
    for (const cell of node.cells) {
      const sorted = cell.dataset.key === key && dataset.metrics.includes(key);
      cell.classList.toggle("sorted", sorted);
      if (sorted) cell.style.setProperty("--share", most > least ? ((valueOf(row, key) ?? least) - least) / (most - least) : 1);
    }
  }
}

/** A card per dataset with what leads there in the benchmark, or at default settings. */
function overview(data, choose) {
  const card = (dataset) => {
    const { test, labels } = dataset.statistics;
    const size = test && labels ? `${grouped.format(test)} queries, ${grouped.format(labels)} labels` : "";
    const plain = dataset.rows.filter((row) => row.main);
    const leaders = ["P@1", "PSP@5"].filter((name) => dataset.metrics.includes(name)).map((name) => {
      const judged = (plain.length ? plain : dataset.rows).filter((row) => typeof row.figures[name].mean === "number");
      const best = percent(judged.length ? Math.max(...judged.map((row) => row.figures[name].mean)) : null);
      const by = new Set(judged.filter((row) => percent(row.figures[name].mean) === best).map((row) => named(row.method)));
      return el("span", { class: "leader" }, el("span", { class: "metric", text: name }), el("b", { text: best }), el("span", { class: "by", text: [...by].join(", ") }));
    });
    return el(
      "button",
      { type: "button", class: "card", onclick: () => choose(dataset.key) },
      el("span", { class: "card-title", text: named(dataset.label) }),
      el("span", { class: "card-size", text: size }),
      ...leaders,
    );
  };
  byId("overview").replaceChildren(...data.datasets.map(card));
}

/** Runs that failed or were killed have no row; they are told with their reason. */
function unfinishedRuns(runs) {
  const box = byId("unfinished");
  if (!runs.length) return;
  box.hidden = false;
  box.querySelector("summary").textContent = `${count(runs.length, "run")} without a result`;
  box.querySelector("ul").replaceChildren(
    ...runs.map((one) => el("li", {}, el("b", { text: `${named(one.method)} on ${named(one.dataset)}` }), ` ${one.status}. ${one.error}`, el("code", { text: one.run }))),
  );
}
