// Requests to the server. The token comes with the address (#token=…), is kept for this tab, and
// leaves the address at once.

const KEY = "hermes-token";

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.name = error.name;
    this.reason = error.reason;
  }
}

export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY);
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token.trim());
}

export function dropToken() {
  sessionStorage.removeItem(KEY);
}

function headers() {
  return { authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
}

async function request(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  const body = await answer.json().catch(() => ({ error: { message: answer.statusText } }));
  if (!answer.ok) throw new ApiError(answer.status, body.error);
  return body.result;
}

// Run an operation of the memory by its name, such as "brain cycle".
export function run(name, args = {}) {
  return request(`/api/v1/ops/${name.replaceAll(" ", "/")}`, {
    method: "POST",
    body: JSON.stringify(args),
    headers: { "content-type": "application/json" },
  });
}

// Run an operation whose system may be off, or whose memory may be gone; null then.
export async function quietly(name, args) {
  try {
    return await run(name, args);
  } catch (problem) {
    if (problem instanceof ApiError && problem.status !== 401) return null;
    throw problem;
  }
}

export function me() {
  return request("/api/v1/me");
}

// Call *heard* with each event until the page is left; a break is mended after a while.
export async function listen(heard) {
  let last = "";
  for (;;) {
    try {
      const extra = last ? { "last-event-id": last } : {};
      const answer = await fetch("/api/v1/events", { headers: { ...headers(), ...extra } });
      if (answer.status === 401) return;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        for (const block of blocks) {
          const data = block.split("\n").find((line) => line.startsWith("data: "));
          if (!data) continue;
          const event = JSON.parse(data.slice(6));
          last = String(event.n);
          heard(event);
        }
      }
    } catch {
      // The server is away; it is asked again below.
    }
    await new Promise((done) => setTimeout(done, 3000));
  }
}
