// Short messages: shown at the bottom of the page and read out by screen readers.

let clearing = 0;

/** Show a message for some seconds. */
export function announce(message, kind = "note") {
  const place = document.getElementById("announcement");
  place.textContent = message;
  place.dataset.kind = kind;
  clearTimeout(clearing);
  clearing = setTimeout(() => {
    place.textContent = "";
  }, 8000);
}
