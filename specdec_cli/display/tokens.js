"use strict";
// What the pages of tokens have in common.
const byId = (id) => document.getElementById(id);

/** A token as it looks, on one line, and what is known of it. */
function row(tag, text, what) {
  const item = document.createElement("li");
  const copy = document.createElement(tag);
  copy.textContent = text.replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5").replaceAll(" ", "\u2423");
  const about = document.createElement("small");
  about.textContent = what;
  item.append(copy, about);
  return item;
}

/** Put the tip above or below a token, near x. */
function placeTip(tip, token, x) {
  const box = token.getClientRects()[0] ?? token.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x - 20, innerWidth - tip.offsetWidth - 8))}px`;
  const above = box.top - tip.offsetHeight - 6;
  tip.style.top = `${above > 2 ? above : Math.min(box.bottom + 6, innerHeight - tip.offsetHeight - 2)}px`;
}

