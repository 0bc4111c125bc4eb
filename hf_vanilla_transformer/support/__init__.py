"""What every room uses and no model needs: files written as a whole, checks of arguments, memory, Equation 3."""
