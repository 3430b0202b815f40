// Building blocks: elements, numbers, and the address of a view. Texts only ever become text nodes.

const byId = (id) => document.getElementById(id);

/** An element with properties (class, text, attributes, on* listeners) and children. */
function el(tag, properties = {}, ...children) {
  return dress(document.createElement(tag), properties, children);
}

/** The same for the parts of a drawing. */
function svg(tag, properties = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function dress(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A select filled with [value, text] pairs. */
function fillSelect(select, options) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value, text })));
}

const grouped = new Intl.NumberFormat("en");
const count = (number, noun) => `${grouped.format(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Two decimals, or a cross where nothing was measured. */
const percent = (value) => (value === null || value === undefined ? "X" : value.toFixed(2));

/** Seconds as a person says them. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

/** A number of any size in about four digits. */
function short(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size === 0 || (size >= 0.001 && size < 1e6)) return String(Number(value.toPrecision(4)));
  return value.toExponential(2);
}

/** Whether there is anything to see in a text: not only spaces, controls and marks of direction. */
const isVisible = (text) => /[^\s\p{Cc}\p{Cf}]/u.test(text ?? "");

/** A text of a dataset; one without anything to see is named. */
const readable = (text) => (isVisible(text) ? text : "(empty text)");

/** A name; one without anything to see could be neither read nor clicked. */
const named = (text) => (isVisible(text) ? text : "(no name)");

/** Two-column list of names and values. */
function pairs(entries, marked = new Set()) {
  const rows = entries.map(([name, value]) =>
    el("div", { class: marked.has(name) ? "marked" : null }, el("dt", { text: name }), el("dd", { text: String(value) })),
  );
  return el("dl", { class: "pairs" }, ...rows);
}

/** Runs a function once after calls have ceased for some milliseconds. */
function settled(milliseconds, run) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), milliseconds);
  };
}

/** Runs a function once in some milliseconds at most, however often it is called. */
function paced(milliseconds, run) {
  let timer;
  return () => {
    timer ??= setTimeout(() => {
      timer = undefined;
      run();
    }, milliseconds);
  };
}

// What is being looked at lives in the address, after the section: #explorer?row=12&runs=r0,r3. A copied address
// brings a reader to the same view.

const view = { section: "", values: new Map(), restorers: [] };

function readAddress() {
  const [section, query] = location.hash.slice(1).split("?");
  view.section = decoded(section);
  if (query === undefined) return false;
  const entries = query.split("&").map((part) => part.split("=").map(decoded));
  view.values = new Map(entries.filter(([name, value]) => name && value !== undefined));
  return true;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a half-copied address is no reason to fail
  }
}

function writeAddress() {
  const encoded = (text) => encodeURIComponent(text).replaceAll("%40", "@").replaceAll("%2C", ",");
  const query = [...view.values].map(([name, value]) => `${encoded(name)}=${encoded(value)}`).join("&");
  const address = `#${view.section}${query ? `?${query}` : ""}`;
  if (address !== location.hash && address !== "#") history.replaceState(null, "", address);
}

/** A value of the view, or what it is when the address does not say. */
const look = (name, otherwise = "") => view.values.get(name) ?? otherwise;

/** Changes values of the view; an empty one is forgotten. */
function remember(changes, section = view.section) {
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) view.values.delete(name);
    else view.values.set(name, String(value));
  }
  view.section = section;
  writeAddress();
}

/** Registers what brings a part of the page to the view of the address. */
const whenRestored = (restore) => view.restorers.push(restore);

function scrollToSection(section) {
  const target = section && byId(section);
  if (target) target.scrollIntoView({ block: "start" });
}

function followAddress() {
  addEventListener("hashchange", () => {
    if (readAddress()) {
      view.restorers.forEach((restore) => restore());
      scrollToSection(view.section);
    } else {
      writeAddress(); // a link to a section keeps the view
    }
  });
}

/** The data of the page: nodes [shape, values...] that hold earlier nodes as [place]; see `packed` in Python. */
function unpacked({ shapes, nodes }) {
  const made = [];
  for (const [shape, ...values] of nodes) {
    const whole = values.map((value) => (Array.isArray(value) ? made[value[0]] : value));
    made.push(shape < 0 ? whole : Object.fromEntries(shapes[shape].map((key, at) => [key, whole[at]])));
  }
  return made.at(-1);
}
