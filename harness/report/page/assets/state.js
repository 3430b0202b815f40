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
