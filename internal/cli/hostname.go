package cli

import "os"

// HostName returns given, or if that is empty the name of this machine.
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
