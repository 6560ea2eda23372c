"""Class masks for folders of photographs, from a few labeled ones or none."""
