// The conversations that this browser keeps, each under a key of its own: so two tabs do not lose each other's.
const KEPT = "specdec.chat.";
const kept = {
  /** All of them, the latest first; what is no conversation is left out. */
  list() {
    const all = attempt(() => Object.keys(localStorage).filter((key) => key.startsWith(KEPT)), []);
    const found = all.map((key) => this.read(key.slice(KEPT.length))).filter(Boolean);
    return found.sort((a, b) => b.at - a.at);
  },

  read(id) {
    const found = attempt(() => JSON.parse(localStorage.getItem(KEPT + id)), null);
    const isTurn = (turn) => ["asked", "answered", "note"].every((name) => typeof turn?.[name] === "string");
    return found?.turns?.length && Array.isArray(found.turns) && found.turns.every(isTurn) ? { ...found, id } : null;
  },

  /** Keep a conversation; the oldest others make room for it. Returns whether there was room. */
  write({ id, ...conversation }) {
    const text = JSON.stringify({ ...conversation, at: Date.now() });
    const older = this.list().filter((each) => each.id !== id);
    while (!attempt(() => (localStorage.setItem(KEPT + id, text), true), false)) {
      if (!older.length) return false;
      this.remove(older.pop().id);
    }
    return true;
  },

  remove(id) {
    attempt(() => localStorage.removeItem(KEPT + id));
  },
};

/** What an action returns, or something else if the browser forbids it. */
function attempt(action, otherwise) {
  try {
    return action();
  } catch {
    return otherwise;
  }
}
