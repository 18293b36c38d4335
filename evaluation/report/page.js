// One player at a time.
document.addEventListener(
  "play",
  (event) => {
    for (const player of document.querySelectorAll("audio")) {
      if (player !== event.target) player.pause();
    }
  },
  true,
);
