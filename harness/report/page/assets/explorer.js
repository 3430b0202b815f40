// The prediction explorer: queries on the left, what several methods predict for one of them on the right.

const CHOSEN_AT_FIRST = 3;
const BINS = ["head", "torso", "tail"];

function predictionExplorer(manifest, changed) {
  const pickDataset = byId("explorer-dataset");
  const search = byId("query-search");
  const list = longList(byId("query-list"), optionOf, choose);
  const known = new Map(); // texts by dataset
  const hits = new Map(); // "d0/r1" -> Uint8Array
  let dataset;
  let store;
  let chosen = [];
  let row = 0;
  let opening; // settles when the query in question is shown

  fillSelect(pickDataset, manifest.datasets.map((one) => [one.name, named(one.title)]));
  pickDataset.addEventListener("change", () => chooseDataset(pickDataset.value));
  search.addEventListener("input", settled(60, () => {
    remember({ q: search.value }, "explorer");
    refill();
  }));
  search.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    event.preventDefault();
    byId("query-list").focus();
    if (event.key === "Enter" || !list.items().includes(row)) list.pick(0);
  });
  byId("query-before").addEventListener("click", () => list.step(-1));
  byId("query-after").addEventListener("click", () => list.step(1));
  byId("query-random").addEventListener("click", () => list.pick(Math.floor(Math.random() * list.items().length)));

  function choose(wanted) {
    remember({ row: wanted }, "explorer");
    open(wanted);
  }

  /** Another dataset has other queries and other runs. */
  function chooseDataset(name, section = "explorer") {
    remember({ explore: name, row: "", q: "", runs: "", a: "", b: "" }, section);
    search.value = "";
    row = 0;
    useDataset(name);
    list.mark(row);
  }

  function useDataset(name) {
    dataset = manifest.datasets.find((one) => one.name === name) ?? manifest.datasets[0];
    pickDataset.value = dataset.name;
    if (!known.has(dataset.folder)) known.set(dataset.folder, queryTexts(dataset, paced(120, textsArrived)));
    store = known.get(dataset.folder);
    byId("bins-note").textContent =
      `number: train rows of the label; head from about ${grouped.format(dataset.head)}, torso from about ${grouped.format(dataset.torso)}, tail below`;
    useRuns(look("runs").split(",").filter((run) => dataset.runs.some((one) => one.run === run)));
    row = Math.min(row, dataset.rows - 1);
    refill();
    opening = open(row);
    changed(dataset);
  }

  /** Runs to show side by side; those that lead at P@1 if none are named. */
  function useRuns(names) {
    const leading = [...dataset.runs].sort((a, b) => (b.metrics["P@1"] ?? 0) - (a.metrics["P@1"] ?? 0));
    chosen = names.length ? names : leading.slice(0, CHOSEN_AT_FIRST).map((one) => one.run);
    const boxes = dataset.runs.map((run) =>
      el(
        "label",
        { title: runTitle(run) },
        el("input", { type: "checkbox", value: run.run, onchange: readPicker }),
        el("span", { text: runName(run, dataset) }),
      ),
    );
    const picker = byId("run-picker");
    picker.replaceChildren(picker.querySelector("legend"), ...boxes);
    for (const input of picker.querySelectorAll("input")) input.checked = chosen.includes(input.value);
    wantHits();
  }

  function readPicker() {
    const checked = [...byId("run-picker").querySelectorAll("input:checked")].map((input) => input.value);
    chosen = [...chosen.filter((run) => checked.includes(run)), ...checked.filter((run) => !chosen.includes(run))];
    remember({ runs: chosen.join(",") }, "explorer");
    wantHits();
    open(row);
  }

  function wantHits() {
    const { folder } = dataset;
    for (const run of chosen) {
      if (hits.has(`${folder}/${run}`)) continue;
      hitsOf(dataset, run).then((masks) => {
        hits.set(`${folder}/${run}`, masks);
        list.draw(true);
      }, (fault) => {
        known.get(folder).fault ??= fault.message;
        textsArrived();
      });
    }
    list.draw(true);
  }

  function optionOf(item) {
    const signs = chosen.map((run) => hits.get(`${dataset.folder}/${run}`)).filter(Boolean);
    return [
      el("span", { class: "option-text", dir: "auto", text: store.texts[item] === null ? "…" : readable(store.texts[item]) }),
      el("span", { class: "option-signs" }, el("span", { class: "option-row", text: `#${item}` }), ...signs.map((masks) => hitSigns(masks[item]))),
    ];
  }

  function refill() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = Array.from({ length: dataset.rows }, (_, index) => index);
    const asked = /^#(\d+)$/.exec(search.value.trim());
    const found = asked ? all.filter((index) => index === Number(asked[1]))
      : words.length ? all.filter((index) => store.texts[index] !== null && words.every((word) => store.lower[index].includes(word)))
      : all;
    list.fill(found, row);
    const waiting = store.fault ? `; ${store.fault}` : store.whole ? "" : `; ${grouped.format(store.loaded)} texts loaded so far`;
    const total = dataset.rows === 1 ? "1 query" : `${grouped.format(dataset.rows)} queries`;
    byId("query-count").textContent = (found.length === dataset.rows ? total : `${grouped.format(found.length)} of ${total}`) + waiting;
  }

  function textsArrived() {
    if (dataset && store === known.get(dataset.folder)) refill();
  }

  /** Shows one query; a later choice wins over one that is still loading. */
  async function open(wanted) {
    row = wanted;
    const asked = { dataset, row, chosen };
    const stale = () => asked.dataset !== dataset || asked.row !== row || asked.chosen !== chosen;
    const part = Math.floor(row / dataset.shard_rows);
    const at = row - part * dataset.shard_rows;
    try {
      const [text, truths, ...answers] = await Promise.all([
        store.want(row),
        shard(dataset, "truth", part),
        ...chosen.map((run) => shard(dataset, run, part)),
      ]);
      const truth = truths[at];
      const answered = answers.map((answer) => ({ ids: answer.ids[at], scores: answer.scores[at] }));
      const labels = await labelsOf(dataset, new Set([...truth, ...answered.flatMap((one) => one.ids)]));
      if (stale()) return;
      byId("query-text").textContent = readable(text);
      byId("truth").replaceChildren(...truth.map((label) => el("li", {}, labelText(labels.get(label)), binOf(labels.get(label)))));
      byId("predictions").replaceChildren(...chosen.map((run, index) => methodColumn(dataset, run, answered[index], new Set(truth), labels)));
      if (!chosen.length) byId("predictions").append(el("p", { class: "quiet", text: "Choose a method above." }));
    } catch (fault) {
      if (stale()) return;
      byId("query-text").textContent = fault.message;
      for (const id of ["truth", "predictions"]) byId(id).replaceChildren(); // those of another query
    }
  }

  /** From elsewhere on the page: this query, these methods. */
  function visit(wanted, runs) {
    search.value = "";
    remember({ q: "", runs: runs.join(","), row: wanted }, "explorer");
    useRuns(runs);
    row = wanted;
    refill();
    list.mark(wanted);
    open(wanted);
    scrollToSection("explorer");
    byId("query-list").focus({ preventScroll: true });
  }

  function restore() {
    search.value = look("q");
    row = Math.max(0, Number.parseInt(look("row", "0"), 10) || 0);
    useDataset(look("explore"));
    list.mark(row);
  }

  whenRestored(restore);
  restore();
  return { visit, chooseDataset, dataset: () => dataset, texts: () => store, opened: () => opening };
}

/** The method's name, with what sets it apart from other runs of the same method. */
function runName(run, dataset) {
  const alike = dataset.runs.filter((one) => one.method === run.method);
  if (alike.length === 1) return named(run.method);
  const apart = ["encoder", "scorer", "settings", "seed"].filter((key) => new Set(alike.map((one) => one[key])).size > 1);
  return [named(run.method), ...apart.map((key) => (key === "seed" ? `seed ${run.seed}` : run[key])).filter(Boolean)].join(" · ");
}

const runTitle = (run) =>
  [run.id, run.encoder, run.scorer, run.settings, ...Object.entries(run.metrics).map(([name, value]) => `${name} ${percent(value)}`)].filter(Boolean).join(" · ");

/** Some labels by id: [text, train rows, bin]. */
async function labelsOf(dataset, ids) {
  const wanted = [...ids].filter((id) => id >= 0);
  const numbers = [...new Set(wanted.map((id) => Math.floor(id / dataset.shard_labels)))];
  const parts = new Map(await Promise.all(numbers.map(async (number) => [number, await shard(dataset, "labels", number)])));
  return new Map(wanted.map((id) => [id, parts.get(Math.floor(id / dataset.shard_labels))[id % dataset.shard_labels]]));
}

const labelText = ([text]) => el("span", { class: "label", dir: "auto", text: readable(text), title: text });

/** The bins cut through labels of equal frequency, so a label carries its own. */
function binOf([, rows, number]) {
  const bin = BINS[number];
  return el("span", { class: `bin ${bin}`, title: `seen in ${count(rows, "train row")}`, text: `${bin} ${grouped.format(rows)}` });
}

function methodColumn(dataset, name, { ids, scores }, truth, labels) {
  const run = dataset.runs.find((one) => one.run === name);
  const items = ids.flatMap((id, index) => (id < 0 ? [] : [prediction(labels.get(id), scores[index], truth.has(id))]));
  const first = ids.slice(0, 5).filter((id) => truth.has(id)).length;
  return el(
    "div",
    { class: "method", "data-run": name },
    el("h5", {}, el("span", { text: runName(run, dataset) }), el("span", { class: "tally", text: `${first} of 5` })),
    items.length ? el("ol", {}, ...items) : el("p", { class: "quiet", text: "No prediction." }),
  );
}

function prediction(label, score, hit) {
  const sign = el("span", { class: `sign ${hit ? "hit" : "miss"}`, role: "img", "aria-label": hit ? "hit" : "miss", text: hit ? "✓" : "×" });
  const facts = el("span", { class: "facts" }, el("span", { class: "score", text: score === null ? "none" : score.toPrecision(3) }), binOf(label));
  return el("li", { class: hit ? "hit" : "miss" }, sign, labelText(label), facts);
}

// A listbox of any length: only the rows in sight exist. The box has the focus; arrow keys move the choice.

const ROW_HEIGHT = 62;
const SPARE = 6;

/**
 * @param box the element with role listbox
 * @param render (item) -> content of an option
 * @param choose (item) -> called when an item is chosen by click or key
 */
function longList(box, render, choose) {
  let items = [];
  let chosen = -1; // position in items
  let drawn = "";
  const spacer = el("div", { class: "spacer", role: "presentation" });
  box.replaceChildren(spacer);

  function draw(force = false) {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - SPARE);
    const end = Math.min(items.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW_HEIGHT) + SPARE);
    const range = `${first}-${end}-${chosen}`;
    if (!force && range === drawn) return;
    drawn = range;
    const options = [];
    for (let position = first; position < end; position++) options.push(option(position));
    spacer.replaceChildren(...options);
    const visible = chosen >= first && chosen < end;
    if (visible) box.setAttribute("aria-activedescendant", `${box.id}-${chosen}`);
    else box.removeAttribute("aria-activedescendant");
  }

  function option(position) {
    const node = el(
      "div",
      {
        id: `${box.id}-${position}`,
        role: "option",
        "data-row": items[position],
        "aria-selected": String(position === chosen),
        "aria-posinset": position + 1,
        "aria-setsize": items.length,
        onclick: (event) => event.detail || pick(position), // without a pointer: a screen reader's
      },
      ...render(items[position]),
    );
    node.style.setProperty("--top", `${position * ROW_HEIGHT}px`);
    return node;
  }

  function pick(position) {
    if (!items.length) return;
    chosen = Math.min(Math.max(position, 0), items.length - 1);
    bringIntoSight();
    draw();
    choose(items[chosen]);
  }

  function bringIntoSight() {
    const top = chosen * ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_HEIGHT - box.clientHeight;
  }

  function fill(list, item) {
    items = list;
    chosen = items.indexOf(item);
    spacer.style.setProperty("--height", `${items.length * ROW_HEIGHT}px`);
    draw(true);
  }

  /** Marks an item chosen elsewhere, in the middle of the box. */
  function mark(item) {
    chosen = items.indexOf(item);
    if (chosen >= 0) box.scrollTop = chosen * ROW_HEIGHT - (box.clientHeight - ROW_HEIGHT) / 2;
    draw(true);
  }

  // not by clicks: there is none where the option under the pointer was drawn anew between press and release
  const under = (event) => Math.floor((event.clientY - spacer.getBoundingClientRect().top) / ROW_HEIGHT);
  let pressed = -1;
  spacer.addEventListener("pointerdown", (event) => { pressed = event.button === 0 ? under(event) : -1; });
  spacer.addEventListener("pointerup", (event) => { if (pressed >= 0 && pressed === under(event)) pick(pressed); });
  spacer.addEventListener("pointercancel", () => { pressed = -1; });

  box.addEventListener("scroll", () => draw(), { passive: true });
  new ResizeObserver(() => draw()).observe(box);
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / ROW_HEIGHT) - 1);
    const moves = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, PageDown: chosen + page, PageUp: chosen - page, Home: 0, End: items.length - 1 };
    const chooses = event.key === "Enter" || event.key === " ";
    if (!(event.key in moves) && !chooses) return;
    event.preventDefault();
    pick(chooses ? Math.max(chosen, 0) : moves[event.key]);
  });
  return { fill, mark, pick, draw, step: (by) => pick(chosen + by), items: () => items };
}
