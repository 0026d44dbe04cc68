"""The release of this code; the distribution's version is read from here."""

RELEASE = "0.1.0"
