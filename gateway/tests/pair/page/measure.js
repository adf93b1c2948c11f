// Tells whoever serves it how the page stands in its window: what is cut, and what is hard to read.
"use strict";

/* Of what differs by less nobody sees it. */
const SLACK = 1;
/* WCAG 2.2, 1.4.3: text beside what is behind it. */
const CONTRAST = 4.5;

const channels = (colour) => colour.match(/[\d.]+/g).map(Number);

function luminance(colour) {
  const [red, green, blue] = channels(colour).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function behind(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if ((channels(colour)[3] ?? 1) > 0) return colour;
  }
  return "rgb(255, 255, 255)";
}

function contrast(element) {
  const [low, high] = [getComputedStyle(element).color, behind(element)].map(luminance).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/* The part of the window, from left to right, in which an element shows. */
function visible(element) {
  let [left, right] = [0, innerWidth];
  for (let at = element; at !== document.body; at = at.parentElement) {
    if (getComputedStyle(at).overflowX === "visible") continue;
    const inside = at.getBoundingClientRect();
    left = Math.max(left, inside.left + at.clientLeft);
    right = Math.min(right, inside.left + at.clientLeft + at.clientWidth);
  }
  return [left, right];
}

function measure() {
  const [clipped, faint] = [[], []];
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const range = document.createRange();
    range.selectNode(node);
    const boxes = [...range.getClientRects()];
    if (!node.data.trim() || boxes.length === 0) continue;
    texts += 1;
    const [left, right] = visible(node.parentElement);
    if (boxes.some((box) => box.left < left - SLACK || box.right > right + SLACK)) clipped.push(node.data);
    if (contrast(node.parentElement) < CONTRAST) faint.push(node.data);
  }
  // A style sheet's names before cells are no text of the document.
  for (const element of document.body.querySelectorAll("*")) {
    if (element.clientWidth > 0 && element.scrollWidth > element.clientWidth + SLACK) clipped.push(element.outerHTML.slice(0, 200));
  }
  const root = document.documentElement;
  return {
    width: innerWidth, content: root.scrollWidth, height: document.body.offsetHeight, texts, clipped, faint,
    is_stale: document.body.classList.contains("stale"),
    is_dark: matchMedia("(prefers-color-scheme: dark)").matches,
    light_behind: luminance(behind(document.body)), light_of_text: luminance(getComputedStyle(document.body).color),
  };
}

/* After two answers of the gateway. */
setTimeout(() => fetch("measured", { method: "POST", body: JSON.stringify(measure()) }), 2500);
