// The conversations saved in this browser, each under its own key, so that two tabs don't overwrite each other's, and
// the settings.
const KEPT = "specdec.chat.";
const SETTINGS = "specdec.settings";
const kept = {
  /** All conversations, the latest first; invalid entries are skipped. */
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

  /** Save a conversation, removing the oldest others if the storage is full. Returns whether it was saved. */
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

  readSettings() {
    return attempt(() => JSON.parse(localStorage.getItem(SETTINGS)), null) ?? {};
  },

  writeSettings(settings) {
    attempt(() => localStorage.setItem(SETTINGS, JSON.stringify(settings)));
  },
};

/** The result of an action, or `otherwise` if the browser forbids it. */
function attempt(action, otherwise) {
  try {
    return action();
  } catch {
    return otherwise;
  }
}
