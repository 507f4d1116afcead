// Package version says which shoal this is.
package version

// Version is the release of the binary, the Go client and the Python package alike.
const Version = "0.3.1"
