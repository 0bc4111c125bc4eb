"""Write the folder of a trained model and its model card, and push both to the Hub."""
