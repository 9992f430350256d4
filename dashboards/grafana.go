package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// object is a JSON object of Grafana's dashboard schema. Its keys are printed in order, so the output is deterministic.
type object = map[string]any

const (
	schemaVersion = 39 // of Grafana 10.4 and later
	runbooks      = "https://github.com/keyward/keyward/blob/main/docs/runbooks/"
)

// render returns the board as Grafana reads it. All panels and variables use the data source chosen at the top.
func (b board) render() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(b.grafana()); err != nil {
		return nil, fmt.Errorf("print %s: %w", b.Title, err)
	}
	return out.Bytes(), nil
}

func (b board) grafana() object {
	return object{
		"uid": b.UID, "title": b.Title, "description": b.About, "tags": []string{"keyward", "envoy", "ratelimit"},
		"schemaVersion": schemaVersion, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "10s",
		"time": object{"from": "now-30m", "to": "now"}, "timezone": "browser", "fiscalYearStartMonth": 0,
		"links":       []object{others()},
		"annotations": object{"list": marks()},
		"templating":  object{"list": b.variables()},
		"panels":      b.panels(),
	}
}

// others returns the links to the boards with the same tag, which keep the time and the variables.
func others() object {
	o := link("dashboards", "Keyward", "", false)
	o["tags"], o["includeVars"], o["keepTime"] = []string{"keyward"}, true, true
	return o
}

func link(kind, title, url string, apart bool) object {
	return object{
		"type": kind, "title": title, "url": url, "targetBlank": apart, "tags": []string{}, "asDropdown": false, "includeVars": false,
		"keepTime": false, "icon": "external link", "tooltip": "",
	}
}

func dataSource() object { return object{"type": "prometheus", "uid": "${datasource}"} }

func marks() []object {
	list := []object{{
		"builtIn": 1, "datasource": object{"type": "grafana", "uid": "-- Grafana --"}, "enable": true, "hide": true,
		"iconColor": "rgba(0, 211, 255, 1)", "name": "Annotations & Alerts", "type": "dashboard",
	}}
	for _, a := range annotations() {
		list = append(list, object{
			"datasource": dataSource(), "enable": true, "iconColor": a.Color, "name": a.Name, "expr": expand(a.Expr),
			"titleFormat": a.Title, "textFormat": a.Text, "step": "15s",
		})
	}
	return list
}

func (b board) variables() []object {
	list := []object{{
		"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "options": []object{},
		"refresh": 1, "regex": "", "hide": 0, "includeAll": false, "multi": false, "skipUrlSync": false,
	}}
	for _, v := range b.choices() {
		query := "label_values(" + v.Metric + ", " + v.Value + ")"
		list = append(list, object{
			"name": v.Name, "label": v.Label, "type": "query", "datasource": dataSource(),
			"query": object{"query": query, "refId": v.Name}, "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
			"current": object{"text": "All", "value": "$__all"}, "options": []object{}, "regex": v.Regex, "hide": 0, "skipUrlSync": false,
		})
	}
	return list
}

// panels places the rows from top to bottom and the panels of a row from left to right, wrapping at the width of 24.
func (b board) panels() []object {
	var list []object
	y := 0
	for _, r := range b.Rows {
		list = append(list, object{
			"id": len(list) + 1, "type": "row", "title": r.Title, "collapsed": false, "panels": []object{},
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1},
		})
		y++
		x, high := 0, 0
		for _, p := range r.Panels {
			if x+p.Width > 24 {
				x, y, high = 0, y+high, 0
			}
			h := p.height()
			o := p.grafana()
			o["id"], o["gridPos"] = len(list)+1, object{"x": x, "y": y, "w": p.Width, "h": h}
			list = append(list, o)
			x, high = x+p.Width, max(high, h)
		}
		y += high
	}
	return list
}

func (p panel) height() int {
	if p.Height == 0 && p.Kind == statPanel {
		return 4
	}
	if p.Height == 0 {
		return 8
	}
	return p.Height
}

func (p panel) grafana() object {
	about := p.About
	if p.faultsOnly() {
		about += " Empty while nothing fails."
	}
	o := object{
		"type": p.Kind, "title": p.Title, "description": about, "datasource": dataSource(),
		"targets": p.targets(), "options": p.options(), "fieldConfig": object{"defaults": p.defaults(), "overrides": p.overrides()},
	}
	if p.Runbook != "" {
		o["links"] = []object{link("link", "Runbook: "+p.Runbook, runbooks+p.Runbook+".md", true)}
	}
	return o
}

// faultsOnly reports whether the panel is empty in normal operation.
func (p panel) faultsOnly() bool {
	for _, q := range p.Queries {
		if !q.Fault {
			return false
		}
	}
	return true
}

func (p panel) targets() []object {
	list := make([]object, len(p.Queries))
	for i, q := range p.Queries {
		list[i] = object{
			"refId": string(rune('A' + i)), "datasource": dataSource(), "editorMode": "code", "expr": expand(q.Expr), "legendFormat": q.Legend,
			"range": true, "instant": false,
		}
	}
	return list
}

func (p panel) options() object {
	last := object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}
	switch p.Kind {
	case statPanel:
		return object{
			"reduceOptions": last, "orientation": "auto", "textMode": "auto", "colorMode": "value", "graphMode": "none", "justifyMode": "auto",
			"wideLayout": true, "showPercentChange": false, "percentChangeColorMode": "standard",
		}
	case barsPanel:
		return object{
			"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic", "valueMode": "color", "showUnfilled": true, "namePlacement": "left",
			"sizing": "auto", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 40,
			"legend": object{"showLegend": false, "displayMode": "list", "placement": "bottom", "calcs": []string{}},
		}
	case seriesPanel:
	}
	return object{
		"legend":  object{"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []string{}},
		"tooltip": object{"mode": "multi", "sort": "desc", "hideZeros": false},
	}
}

func (p panel) defaults() object {
	steps := []object{}
	for i, s := range p.Steps {
		step := object{"color": s.Color, "value": s.From}
		if i == 0 {
			step["value"] = nil // minus infinity
		}
		steps = append(steps, step)
	}
	if len(steps) == 0 {
		steps = []object{{"color": "green", "value": nil}}
	}
	mode := "palette-classic"
	if p.Kind != seriesPanel {
		mode = "thresholds"
	}
	d := object{
		"unit": p.Unit, "min": 0, "mappings": []object{}, "color": object{"mode": mode}, "thresholds": object{"mode": "absolute", "steps": steps},
	}
	if p.Max > 0 {
		d["max"] = p.Max
	}
	if p.Kind == seriesPanel {
		d["custom"] = p.lines()
	}
	return d
}

func (p panel) lines() object {
	stacking, fill := "none", 0
	if p.Stacked {
		stacking, fill = "normal", 30
	}
	return object{
		"drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 1, "fillOpacity": fill, "gradientMode": "none", "showPoints": "never",
		"spanNulls": false, "insertNulls": false, "pointSize": 5, "stacking": object{"mode": stacking, "group": "A"},
		"axisPlacement": "auto", "axisLabel": "", "axisColorMode": "text", "axisBorderShow": false, "axisCenteredZero": false,
		"scaleDistribution": object{"type": "linear"}, "thresholdsStyle": object{"mode": "off"}, "barAlignment": 0,
		"hideFrom": object{"legend": false, "tooltip": false, "viz": false},
	}
}

func (p panel) overrides() []object {
	list := []object{}
	for _, name := range sorted(p.Colors) {
		list = append(list, object{
			"matcher":    object{"id": "byName", "options": name},
			"properties": []object{{"id": "color", "value": object{"mode": "fixed", "fixedColor": p.Colors[name]}}},
		})
	}
	return list
}
