// Package plural counts things in texts for people: "1 worker", "3 workers".
package plural

import "fmt"

// Of is so many things of a name whose plural has an s more.
func Of(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Verb is what so many do: one "stays", several "stay".
func Verb(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}
