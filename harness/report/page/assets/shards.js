// The explorer's data: scripts beside the page, each a call with JSON. Scripts, because a page opened from a disk may
// load those and nothing else. What a script brings is looked at before it is believed: it may be torn, or of a later
// build than the list that the page works by.

const SHARDS_VERSION = 2;
const MAKE_AGAIN =
  "make the explorer again: python -m harness report --open, or for a folder reports: python -m harness report --write --explorer";
const shelf = new Map(); // "d0/texts/3" -> {dataset, promise, resolve, reject}

/** What is wrong with the explorer's data, and what to do about it. */
class ShardFault extends Error {
  constructor(message, remedy = MAKE_AGAIN) {
    super(`${message}; ${remedy}`);
  }
}

window.harnessShard = (folder, kind, number, content, build) => {
  const entry = shelf.get(`${folder}/${kind}/${number}`);
  if (!entry) return; // nobody asked for it
  if (build !== entry.dataset.build) entry.reject(new ShardFault("the explorer was made anew", "reload the page"));
  else if (!isWhole(entry.dataset, kind, number, content)) entry.reject(new ShardFault(`${entry.address} is damaged`));
  else entry.resolve(content);
};

/** What is in a shard; asks for its script the first time. */
function shard(dataset, kind, number = null) {
  const key = `${dataset.folder}/${kind}/${number ?? 0}`;
  if (!shelf.has(key)) {
    const name = number === null ? kind : `${kind}-${String(number).padStart(3, "0")}`;
    const entry = { dataset, address: `explorer/${dataset.folder}/${name}.js` };
    entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
    entry.promise.catch(() => {}); // whoever waits hears of it; nobody waiting is no fault
    shelf.set(key, entry);
    // after its script has run, what has not come will not come
    loadScript(entry.address).then(() => entry.reject(new ShardFault(`${entry.address} is empty or damaged`)), entry.reject);
  }
  return shelf.get(key).promise;
}

function loadScript(address) {
  return new Promise((resolve, reject) => {
    const script = el("script", { src: address, onload: resolve, onerror: () => reject(new ShardFault(`${address} is not there`)) });
    document.head.append(script);
    script.addEventListener("load", () => script.remove());
  });
}

const isText = (value) => typeof value === "string";
const isFigure = (value) => value === null || Number.isFinite(value);
const isCount = (value) => Number.isInteger(value) && value >= 0;
const isList = (values, length, isRight) => Array.isArray(values) && values.length === length && values.every(isRight);

/** Whether a shard has all its rows, and in them what the page reads. */
function isWhole(dataset, kind, number, content) {
  const lengthOf = (all, size) => Math.min(size, all - number * size);
  const rows = lengthOf(dataset.rows, dataset.shard_rows);
  const isLabel = (id) => isCount(id) && id < dataset.labels;
  if (kind === "texts") return isList(content, rows, isText);
  if (kind === "truth") return isList(content, rows, (ids) => Array.isArray(ids) && ids.every(isLabel));
  if (kind === "labels") return isList(content, lengthOf(dataset.labels, dataset.shard_labels), (one) => isText(one?.[0]) && isCount(one[1]) && BINS[one[2]]);
  if (kind.endsWith("-hits")) return isText(content) && content.length === dataset.rows && [...content].every((letter) => HIT_LETTERS.includes(letter));
  const isRanking = (ids) => isList(ids, dataset.per_row, (id) => id === -1 || isLabel(id));
  return isList(content?.ids, rows, isRanking) && isList(content.scores, rows, (scores) => isList(scores, dataset.per_row, isFigure));
}

/** The list of what there is, or why there is none: {manifest} or {fault}; neither where no shards lie beside the page. */
async function loadManifest() {
  let manifest;
  window.harnessExplorer = (content) => (manifest = content);
  try {
    await loadScript("explorer/manifest.js");
  } catch {
    return {};
  }
  if (!Array.isArray(manifest?.datasets)) return { fault: "The list of the texts beside this page is empty or damaged." };
  if (manifest.version !== SHARDS_VERSION) return { fault: "The texts beside this page were made for another version of it." };
  if (!manifest.datasets.length) return {};
  const datasets = manifest.datasets.map((one) => ({ ...one, per_row: manifest.per_row }));
  return datasets.every(isDescribed) ? { manifest: { ...manifest, datasets } } : { fault: "The list of the texts beside this page is damaged." };
}

/** Whether the list says of a dataset what the page works by. */
function isDescribed(dataset) {
  const { name, title, folder, build, runs } = dataset;
  const isRun = (run) => isText(run?.run) && isText(run.method) && Object.values(run.metrics ?? [""]).every(isFigure);
  return (
    [name, title, folder, build].every(isText) &&
    [dataset.rows, dataset.shard_rows, dataset.shard_labels, dataset.per_row].every((value) => isCount(value) && value > 0) &&
    [dataset.labels, dataset.head, dataset.torso].every(isCount) &&
    Array.isArray(runs) && runs.length > 0 && runs.every(isRun)
  );
}

const HIT_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/** Hits of a run in its first five predictions: one number a row, bit i for prediction i. */
async function hitsOf(dataset, run) {
  const letters = await shard(dataset, `${run}-hits`);
  return Uint8Array.from(letters, (letter) => HIT_LETTERS.indexOf(letter));
}

const bitCount = (mask) => ((mask & 1) + ((mask >> 1) & 1) + ((mask >> 2) & 1) + ((mask >> 3) & 1) + ((mask >> 4) & 1));

/** Hits and misses of five predictions as signs, with words for who hears them. */
function hitSigns(mask) {
  const signs = [0, 1, 2, 3, 4].map((bit) => el("span", { class: (mask >> bit) & 1 ? "on" : "off", text: (mask >> bit) & 1 ? "●" : "○" }));
  return el("span", { class: "signs", role: "img", "aria-label": `${bitCount(mask)} of 5 hits` }, ...signs);
}

/** The texts of a dataset's queries, filled shard by shard; `arrived` is called after each. */
function queryTexts(dataset, arrived) {
  const texts = new Array(dataset.rows).fill(null);
  const lower = new Array(dataset.rows).fill("");
  const shards = Math.ceil(dataset.rows / dataset.shard_rows);
  const store = { texts, lower, loaded: 0, whole: false, want };

  async function want(row) {
    const number = Math.floor(row / dataset.shard_rows);
    if (texts[row] === null) keep(number, await shard(dataset, "texts", number));
    return texts[row];
  }

  function keep(number, content) {
    const first = number * dataset.shard_rows;
    if (texts[first] !== null) return;
    content.forEach((text, index) => {
      texts[first + index] = text;
      lower[first + index] = text.toLowerCase();
    });
    store.loaded += content.length;
    store.whole = store.loaded >= dataset.rows;
    arrived();
  }

  async function inBackground() {
    let next = 0;
    const worker = async () => {
      while (next < shards) {
        const number = next++;
        keep(number, await shard(dataset, "texts", number));
      }
    };
    await Promise.all([worker(), worker(), worker(), worker()]);
  }

  inBackground().catch((fault) => {
    store.fault = fault.message;
    arrived();
  });
  return store;
}
