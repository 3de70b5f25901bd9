"""Reading, editing, differentiating and saving the named quantities of a forward pass."""
