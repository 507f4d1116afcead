"""How one worker talks to its agent: the link, the arena, and the way of a call."""
