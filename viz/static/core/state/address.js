/** The state of a page of its own, in the part of its address behind "#". */

/** @returns {import("../frame/frame.js").Address} */
export function pageAddress() {
  return {
    read: () => location.hash,
    write,
    listen: (changed) => addEventListener("hashchange", changed),
  };
}

/** @param {string} hash */
function write(hash) {
  if (hash === location.hash.slice(1)) return;
  try {
    history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
  } catch {
    // Safari allows a hundred changes in half a minute; a later change writes the address.
  }
}
