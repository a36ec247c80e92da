"""The ways of finding parameters and drawing missing cells, behind one interface."""
