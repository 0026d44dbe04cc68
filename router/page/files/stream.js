// Server-sent events by fetch: EventSource can send no Authorization header.

const MAX_EVENT = 8_000_000;

export class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The data of each event, as text. Throws HttpError for an answer that is none.
export async function* eventsOf(url, options) {
  const response = await fetch(url, options);
  if (!response.ok) throw await errorOf(response);
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = events.pop();
      if (rest.length > MAX_EVENT) throw new Error("an event without an end");
      for (const event of events) if (event.startsWith("data: ")) yield event.slice(6);
    }
  } finally {
    // Also ends the request, where the reader left early.
    await reader.cancel().catch(() => {});
  }
}

export async function errorOf(response) {
  let message = `${response.status} ${response.statusText}`.trim();
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not ours: a proxy's page.
  }
  return new HttpError(response.status, message);
}
