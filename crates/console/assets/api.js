// The API beside this page, with the token that was typed in.

const KEY = "fairlane-token";
const BASE = new URL("../v1/", location.href);

export class Fault extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Tells when a token is not (or no longer) good. */
export const session = new EventTarget();

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/** A response that is as wanted. Throws [`Fault`] with words for people. */
export async function request(method, path, { body, signal, secret = token.get() } = {}) {
  const headers = { authorization: `Bearer ${secret}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      method, headers, signal, cache: "no-store", credentials: "omit", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault("The scheduler does not answer. It may be starting again; try once more.", 0);
  }
  if (response.ok) return response;
  if (response.status === 401 && secret === token.get()) session.dispatchEvent(new Event("refused"));
  throw new Fault(await said(response), response.status);
}

async function said(response) {
  try {
    const { error } = await response.json();
    return sentence(error.message ?? error);
  } catch {
    return `The scheduler answered with status ${response.status}.`;
  }
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

export const ask = async (method, path, options) => (await request(method, path, options)).json();

/** A path of its parts, each of which may hold anything; and a query without what is not given. */
export function path(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const search = new URLSearchParams(given).toString();
  return parts.map(encodeURIComponent).join("/") + (search && `?${search}`);
}
