/** The address of a live page: what is asked for, and the state of the picture. */

import { pictureOf, writeAddress } from "./address.js";

/** Milliseconds after the last change: browsers refuse an address that changes with every key. */
const PAUSE = 200;

export class AddressBar {
  /**
   * @param {import("../core/frame/frame.js").Address} address
   * @param {() => import("./asked.js").Asked} asked
   */
  constructor(address, asked) {
    this.address = address;
    this.asked = asked;
    this.picture = pictureOf(address.read());
    /** Two pictures are usual with changes: one alone has to be written. */
    this.alone = () => false;
    /** The exercise that is open. */
    this.exercise = () => ({ exercise: 0, step: 1 });
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
  }

  /** The frame's side of it. @returns {import("../core/frame/frame.js").Address} */
  ofPicture() {
    return {
      read: () => pictureOf(this.address.read()),
      write: (picture) => {
        this.picture = picture;
        this.later();
      },
      listen: (changed) => this.address.listen(changed),
    };
  }

  /** What is written at last. */
  hash() {
    const alone = this.alone() && !new URLSearchParams(this.picture).has("beside");
    const { exercise, step } = this.exercise();
    const open = exercise ? [`exercise=${exercise}`, `step=${step}`] : [];
    return writeAddress(this.asked(), [this.picture, ...(alone ? ["beside=none"] : []), ...open].filter(Boolean).join("&"));
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), PAUSE);
  }

  now() {
    clearTimeout(this.timer);
    this.address.write(this.hash());
  }
}
