"""Accessibility of a page, measured in the browser: contrast, names of controls, no horizontal scrolling."""

from playwright.sync_api import Page

# Relative luminance and contrast as in WCAG 2.2: L = .2126 R + .7152 G + .0722 B of the linear channels, and
# (L1 + .05) / (L2 + .05). A canvas turns every way to write a colour into numbers, and lays one over another.
_CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1), brush = canvas.getContext("2d", {willReadFrequently: true});
  const seen = (colours) => {
    brush.clearRect(0, 0, 1, 1);
    for (const colour of colours) { brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1); }
    return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (colour) => colour
    .map((value) => value / 255).map((value) => value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4)
    .reduce((sum, value, channel) => sum + value * [.2126, .7152, .0722][channel], 0);
  const faults = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || element.closest("script, style, option, :disabled, [aria-disabled=true]")) continue;
    if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    layers.unshift("white");
    const style = getComputedStyle(element);
    const below = luminance(seen(layers)), above = luminance(seen([...layers, style.color]));
    const ratio = (Math.max(below, above) + .05) / (Math.min(below, above) + .05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    texts += 1;
    const sign = element.closest("[role=img], [aria-hidden=true]") !== null;
    if (ratio < (large || sign ? 3 : 4.5))
      faults.add(`${ratio.toFixed(2)} ${element.tagName}.${element.className}: ${node.data.trim().slice(0, 40)}`);
  }
  return {texts, faults: [...faults]};
}"""

_WIDE = """() => {
  const root = document.scrollingElement, wide = [];
  if (root.scrollWidth <= root.clientWidth) return wide;
  const boxed = (element) => {
    for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
      if (getComputedStyle(at).overflowX !== "visible") return true;
    return false;
  };
  for (const element of document.body.querySelectorAll("*"))
    if (element.getBoundingClientRect().right > root.clientWidth + .5 && !boxed(element))
      wide.push(`${element.tagName}#${element.id}.${element.className}`);
  return [`the page is ${root.scrollWidth} wide in ${root.clientWidth}`, ...wide.slice(0, 10)];
}"""

_STUCK = """() => [...document.body.querySelectorAll("*")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1
    && ["auto", "scroll"].includes(getComputedStyle(one).overflowX)
    && one.tabIndex < 0 && !one.querySelector("a[href], button, input, select, [tabindex='0']"))
  .map((one) => `${one.tagName}#${one.id}.${one.className}: ${one.textContent.trim().slice(0, 40)}`)"""

_BROKEN = """() => {
  const faults = [], ids = new Set();
  for (const element of document.querySelectorAll("[id]")) {
    if (ids.has(element.id)) faults.push(`two elements are #${element.id}`);
    ids.add(element.id);
  }
  for (const name of ["aria-controls", "aria-describedby", "aria-labelledby", "aria-activedescendant", "for"])
    for (const element of document.querySelectorAll(`[${name}]`))
      for (const id of element.getAttribute(name).split(/\\s+/).filter(Boolean))
        if (!ids.has(id)) faults.push(`${name}=${id} of ${element.tagName}#${element.id} leads nowhere`);
  let before = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    if (!heading.checkVisibility()) continue;
    const level = Number(heading.tagName[1]);
    if (level > before + 1) faults.push(`h${level} '${heading.textContent}' after h${before}`);
    before = level;
  }
  if (!document.documentElement.lang) faults.push("no lang");
  if (!document.title) faults.push("no title");
  return faults;
}"""


def pale_texts(page: Page) -> list[str]:
    """Return visible texts whose contrast is below 4.5 (3 for large ones and for signs), each with its ratio."""
    found = page.evaluate(_CONTRAST)
    assert found["texts"] > 20, "there is hardly any text to look at"
    faults: list[str] = found["faults"]
    return faults


def sideways(page: Page) -> list[str]:
    """Return the elements that make the page scroll horizontally."""
    wide: list[str] = page.evaluate(_WIDE)
    return wide


def stuck(page: Page) -> list[str]:
    """Return boxes that scroll horizontally but cannot be reached by keyboard."""
    boxes: list[str] = page.evaluate(_STUCK)
    return boxes


def broken_structure(page: Page) -> list[str]:
    """Return faults: repeated ids, dangling references, skipped levels of headings, a missing language or title."""
    faults: list[str] = page.evaluate(_BROKEN)
    return faults


def nameless(page: Page) -> list[str]:
    """Return controls and pictures without a name in the browser's accessibility tree."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    spoken = set("button link textbox searchbox combobox listbox checkbox radio img image dialog option".split())
    roles = [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip()) for node in nodes if not node["ignored"]
    ]
    assert len(roles) > 50, "there is hardly anything to look at"
    return [role for role, name in roles if role in spoken and not name]
