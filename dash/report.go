package dash

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"

	"github.com/shoal-ml/shoal/watch"
	"github.com/shoal-ml/shoal/web"
)

// WriteReport writes the page of a run with the run in it to w: one file that needs no server and
// no network. It holds the command of the job and what the ledger says, and not the output of
// workers. It changes nothing of v, and waits for w alone.
func WriteReport(w io.Writer, v watch.View) error {
	data, err := json.Marshal(v) // in which <, > and & are escaped, so it cannot end its element
	if err != nil {
		return err
	}
	style, err := fs.ReadFile(web.Files, "dist/page.css")
	if err != nil {
		return err
	}
	script, err := fs.ReadFile(web.Files, "dist/page.js")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '%s'; `+
		`style-src '%s'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<link rel="icon" href="data:,">
<style>%s</style>
</head>
<body><div id="app"></div>
<script type="application/json" id="data">%s</script>
<script>%s</script>
</body>
</html>
`, contentHash(script), contentHash(style), html.EscapeString("shoal: "+v.Job), style, data, script)
	return err
}

// contentHash names a script or a style sheet for a policy. It is pure.
func contentHash(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
