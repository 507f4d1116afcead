package cli

import (
	"errors"
	"strings"
	"testing"
)

// TestParseEnv reads values of --env, of which the last of a name counts, and refuses a bare name.
func TestParseEnv(t *testing.T) {
	env, err := ParseEnv([]string{"A=1", "B=", "C=x=y", "A=2"})
	if err != nil || len(env) != 3 || env["A"] != "2" || env["B"] != "" || env["C"] != "x=y" {
		t.Errorf("%v, %v", env, err)
	}
	usage := new(usageFault)
	if _, err := ParseEnv([]string{"A"}); !errors.As(err, &usage) ||
		!strings.Contains(err.Error(), "--env A has no value; write --env A=VALUE") {
		t.Errorf("a bare name: %v", err)
	}
	if _, err := ParseEnv([]string{""}); !errors.As(err, &usage) ||
		!strings.Contains(err.Error(), `--env "" names no variable; write --env NAME=VALUE`) {
		t.Errorf("nothing: %v", err)
	}
}
