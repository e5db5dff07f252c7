"""The page in headless Chromium, tested by what a person sees and does."""
