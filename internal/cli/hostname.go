package cli

import "os"

// HostName returns given, or if that is empty the name of this machine, or "host" if it has none.
// Any goroutine may call it.
func HostName(given string) string {
	if given != "" {
		return given
	}
	name, err := os.Hostname()
	if err != nil {
		return "host"
	}
	return name
}
