// Who are you? Asked once a browser tab.

import { ask, token } from "./api.js";
import { field, h, replace } from "./dom.js";

/** The role that `secret` has. Throws a fault with words for people. */
export async function known(secret) {
  const who = await ask("GET", "whoami", { secret });
  if (who.role === "tenant") {
    throw new Error(`This key speaks for tenant ${who.tenant} alone. The console needs the token of a viewer or an operator.`);
  }
  return who;
}

/** Shows the form; calls `entered` with who it is. */
export function signIn(main, entered, why) {
  const input = h("input", { type: "password", name: "token", id: "token", autocomplete: "current-password", required: true, spellcheck: "false" });
  const said = h("p", { class: "note bad", role: "alert", hidden: !why }, why ?? "");
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  const enter = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const secret = input.value.trim();
      const who = await known(secret);
      token.set(secret);
      entered(who);
    } catch (fault) {
      said.textContent = fault.status === 401 ? "This token is not known, or was taken back." : fault.message;
      said.hidden = false;
      input.select();
    } finally {
      button.disabled = false;
    }
  };
  replace(main, h("form", { class: "signin card", on: { submit: enter } },
    h("h1", {}, "Sign in"),
    h("p", { class: "dim" }, "With a viewer's or an operator's token, as for the HTTP API. It stays in this browser tab."),
    field("Token", input),
    said,
    h("div", { class: "actions" }, button)));
  input.focus();
}
