package cli

import (
	"os"
	"os/user"
)

// Requester returns user@host of this process, which the ledger of a job names as who asked for a
// change. It returns the name alone where the host has none. It asks the system; any goroutine may
// call it.
func Requester() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
