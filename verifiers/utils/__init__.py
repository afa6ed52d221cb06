"""Import paths of v0; the code they name lives elsewhere, and nothing inside the library imports from here."""
