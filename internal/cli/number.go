package cli

import (
	"fmt"
	"strconv"
)

// AtLeast is a flag with a whole number, below a bound of which nothing can be meant. The goroutine
// of the command uses it.
type AtLeast[T int | int64] struct {
	n     *T     // where the number goes; nil only in the zero value
	bound T      // the smallest number that the flag takes
	what  string // what the flag takes, for the error
}

// NewAtLeast returns a flag that sets *n to a number of at least bound. what says in errors what
// the flag takes. The flag sets *n while the command line is read.
func NewAtLeast[T int | int64](n *T, bound T, what string) AtLeast[T] {
	return AtLeast[T]{n, bound, what}
}

// Set implements pflag.Value: it sets the number from the text of the flag.
func (f AtLeast[T]) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	if n < int64(f.bound) || int64(T(n)) != n {
		return fmt.Errorf("it takes %s", f.what)
	}
	*f.n = T(n)
	return nil
}

// String implements pflag.Value: the number in decimal digits.
func (f AtLeast[T]) String() string {
	if f.n == nil {
		return ""
	}
	return strconv.FormatInt(int64(*f.n), 10)
}

// Type implements pflag.Value: what the help calls the value.
func (f AtLeast[T]) Type() string { return "int" }
