"""Class masks for folders of images, from a few labeled ones or none."""
