"""Operations of the model, faster. Importing the package puts them in the place of the plain ones.

Each replacement is a function of plain arguments. It decides for each call by what is true, such as the device and the
dtype, and runs the plain operation where it has nothing better.
"""
