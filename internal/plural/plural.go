// Package plural counts things in texts for people: "1 worker", "3 workers".
package plural

import "fmt"

// The functions are pure, so any goroutine may call them.

// Of returns a number and a noun, such as "3 workers"; the plural of the noun has an s more.
func Of(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Verb returns the form of a verb for n subjects: one for 1, or else several.
func Verb(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}
