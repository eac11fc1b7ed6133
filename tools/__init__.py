"""What makes things that the package ships and is not itself in the package."""
