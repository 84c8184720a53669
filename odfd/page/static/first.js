// Opens the session and asks what is looked at first, while the files that show it still come.

import { askAhead, begin, DATASETS } from "/api.js";

const STATUS = "/node/v1alpha1/status";

async function open() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", "/#/datasets");
    await begin(token);
  }
  const isList = /^#?\/?(datasets\/?)?(\?|$)/.test(location.hash);
  return { answered: Promise.allSettled([...(isList ? [DATASETS] : []), STATUS].map(askAhead)) };
}

/** The session: rejected where it cannot be had. `answered` ends when what was asked ahead was answered. */
export const opened = open();
opened.catch(() => {}); // told by the page
