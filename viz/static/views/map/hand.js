/**
 * The hand on a map: wheel and pinch zoom, a drag moves, a click chooses.
 *
 * @typedef {object} Hand
 * @property {(x: number, y: number, factor: number) => boolean} zoom  whether it changed anything
 * @property {(across: number, down: number) => void} drag  CSS pixels
 * @property {(x: number, y: number) => void} point
 * @property {() => void} leave
 * @property {(x: number, y: number) => void} click
 * @property {() => void} reset
 */

import { moved, zoomed } from "../../core/state/window.js";

/** A pointer that moved less than this, in CSS pixels, did not mean to drag. */
const STILL = 4;
/** How much a pixel of the wheel zooms; a pinch on a touchpad comes as a wheel with Ctrl. */
const WHEEL = 0.0016;
const PINCH = 0.01;
/** Wheels that count in lines. */
const LINE = 24;

/**
 * @param {HTMLElement} surface
 * @param {Hand} hand
 */
export function listenToHand(surface, hand) {
  /** @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let dragged = false;
  const at = (/** @type {MouseEvent} */ event) => {
    const box = surface.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  surface.addEventListener("wheel", (event) => {
    const { x, y } = at(event);
    const amount = event.deltaY * (event.deltaMode ? LINE : 1) * (event.ctrlKey ? PINCH : WHEEL);
    // At either end of the zoom the wheel turns the page.
    if (hand.zoom(x, y, Math.exp(amount)) || event.ctrlKey) event.preventDefault();
  }, { passive: false });
  surface.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (!down.size) dragged = false;
    down.set(event.pointerId, at(event));
    surface.setPointerCapture(event.pointerId);
  });
  surface.addEventListener("pointermove", (event) => {
    const now = at(event);
    const before = down.get(event.pointerId);
    if (!before) return event.pointerType === "touch" ? undefined : hand.point(now.x, now.y);
    if (down.size === 1 && !dragged && Math.hypot(now.x - before.x, now.y - before.y) < STILL) return undefined;
    dragged = true;
    const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    down.set(event.pointerId, now);
    if (other) pinch(hand, before, now, other);
    else hand.drag(now.x - before.x, now.y - before.y);
    return undefined;
  });
  const up = (/** @type {PointerEvent} */ event) => down.delete(event.pointerId);
  surface.addEventListener("pointerup", up);
  surface.addEventListener("pointercancel", up);
  surface.addEventListener("pointerleave", () => hand.leave());
  surface.addEventListener("click", (event) => {
    const { x, y } = at(event);
    if (!dragged) hand.click(x, y);
  });
  surface.addEventListener("dblclick", () => hand.reset());
}

/**
 * @param {Hand} hand
 * @param {{x: number, y: number}} before
 * @param {{x: number, y: number}} now
 * @param {{x: number, y: number}} other  the finger that did not move
 */
function pinch(hand, before, now, other) {
  const distance = (/** @type {{x: number, y: number}} */ point) => Math.max(Math.hypot(point.x - other.x, point.y - other.y), 1);
  hand.drag((now.x - before.x) / 2, (now.y - before.y) / 2);
  hand.zoom((now.x + other.x) / 2, (now.y + other.y) / 2, distance(before) / distance(now));
}

/**
 * What the hand does to a map.
 *
 * @param {import("./map.js").MapView} map
 * @returns {Hand}
 */
export function handOf(map) {
  const part = (/** @type {number} */ at, /** @type {number} */ length) => Math.min(Math.max(at / length, 0), 1);
  return {
    zoom(x, y, factor) {
      if (!map.frame) return false;
      const window = map.window();
      const [top, bottom, left, right] = window;
      const query = top + part(y - map.frame.top, map.frame.height) * (bottom - top);
      const key = left + part(x - map.frame.left, map.frame.width) * (right - left);
      return map.see(zoomed(window, factor, query, key, map.sizes));
    },
    drag(across, down) {
      if (!map.frame) return;
      const window = map.window();
      const queries = (-down / map.frame.height) * (window[1] - window[0]);
      const keys = (-across / map.frame.width) * (window[3] - window[2]);
      map.see(moved(window, queries, keys, map.sizes));
    },
    point: (x, y) => map.point(map.cellAt(x, y)),
    leave: () => map.point(null),
    click: (x, y) => map.keep(map.cellAt(x, y)),
    reset: () => void map.see(null),
  };
}
