// The explorer's data: scripts beside the page, each a call with JSON. Scripts, because a page opened from a disk may
// load those and nothing else.

const shelf = new Map(); // "d0/texts/3" -> {promise, resolve}

window.harnessShard = (folder, kind, number, content) => place(`${folder}/${kind}/${number}`).resolve(content);

function place(key) {
  if (!shelf.has(key)) {
    const entry = {};
    entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
    entry.promise.catch(() => {}); // whoever waits hears of it; nobody waiting is no fault
    shelf.set(key, entry);
  }
  return shelf.get(key);
}

/** What is in a shard; asks for its script the first time. */
function shard(folder, kind, number = null) {
  const entry = place(`${folder}/${kind}/${number ?? 0}`);
  if (!entry.asked) {
    entry.asked = true;
    const name = number === null ? kind : `${kind}-${String(number).padStart(3, "0")}`;
    loadScript(`explorer/${folder}/${name}.js`).catch(entry.reject);
  }
  return entry.promise;
}

function loadScript(address) {
  return new Promise((resolve, reject) => {
    const script = el("script", { src: address, onload: resolve, onerror: () => reject(new Error(`${address} is not there`)) });
    document.head.append(script);
    script.addEventListener("load", () => script.remove());
  });
}

/** The list of what there is; null where no shards lie beside the page. */
async function loadManifest() {
  let manifest = null;
  window.harnessExplorer = (content) => (manifest = content);
  try {
    await loadScript("explorer/manifest.js");
  } catch {
    return null;
  }
  return manifest?.version === 1 && manifest.datasets.length ? manifest : null;
}

const HIT_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/** Hits of a run in its first five predictions: one number a row, bit i for prediction i. */
async function hitsOf(folder, run) {
  const letters = await shard(folder, `${run}-hits`);
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
    if (texts[row] === null) keep(number, await shard(dataset.folder, "texts", number));
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
        keep(number, await shard(dataset.folder, "texts", number));
      }
    };
    await Promise.all([worker(), worker(), worker(), worker()]);
  }

  inBackground().catch(() => {
    store.broken = true;
    arrived();
  });
  return store;
}
