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
        onclick: () => pick(position),
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
