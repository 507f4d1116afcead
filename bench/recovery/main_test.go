package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/shoal-ml/shoal/internal/cli/clitest"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"recovery": main}) }

func TestScripts(t *testing.T) { clitest.Run(t, "testdata") }
