// Building blocks: elements, numbers, commands. Texts only ever become text nodes.

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

/** Runs a function at the first call and then at most once in some milliseconds, with a last time after the last call. */
function paced(milliseconds, run) {
  let waiting = false;
  let again = false;
  return function call() {
    if (waiting) {
      again = true;
      return;
    }
    waiting = true;
    run();
    setTimeout(() => {
      waiting = false;
      if (again) {
        again = false;
        call();
      }
    }, milliseconds);
  };
}

/** Gives every command on the page a button that copies it. */
function offerCopies() {
  for (const box of document.querySelectorAll(".command")) {
    const copied = async () => {
      try {
        await navigator.clipboard.writeText(box.querySelector("code").textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(box.querySelector("code"));
        button.textContent = "Selected";
      }
    };
    const button = el("button", { type: "button", text: "Copy", onclick: copied });
    box.append(button);
  }
}
