"""Files, disks, arguments, memory, the machine, Equation 3 and the style of figures: nothing that knows the model."""
