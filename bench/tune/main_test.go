package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/shoal-ml/shoal/internal/cli/clitest"
)

// TestMain makes the test program also the program under test, for the scripts.
func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"tune": main}) }

// TestScripts runs testdata/*.txtar, with the commands of package clitest.
func TestScripts(t *testing.T) { clitest.Run(t, "testdata") }
