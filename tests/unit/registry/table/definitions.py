"""The schema definitions of the classes in the table."""

from typing import Final

from tests.unit.registry.table.row import Schema

__all__ = ["DEFINITIONS"]

INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
STRING: Final[Schema] = {"type": "string"}

DEFINITIONS: Final[dict[str, Schema]] = {
    "ArrayPoint": {
        "title": "ArrayPoint",
        "type": "array",
        "prefixItems": [
            {"type": "integer", "minimum": 0, "description": "across"},
            {"type": "integer", "maximum": 9, "default": 0},
        ],
        "minItems": 1,
        "maxItems": 2,
    },
    "AttrsPoint": {
        "title": "AttrsPoint",
        "type": "object",
        "properties": {"x": {"type": "integer", "description": "across"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    },
    "Box_Path_": {
        "title": "Box[Path]",
        "type": "object",
        "properties": {
            "item": {"type": "string", "format": "path"},
            "size": {"type": "integer", "minimum": 1, "default": 1},
        },
        "required": ["item"],
    },
    "Box_int_": {
        "title": "Box[int]",
        "type": "object",
        "properties": {"item": INTEGER, "size": {"type": "integer", "minimum": 1, "default": 1}},
        "required": ["item"],
    },
    "Cat": {
        "title": "Cat",
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["Cat"]}, "lives": INTEGER},
        "required": ["type", "lives"],
    },
    "Circle": {
        "title": "Circle",
        "type": "object",
        "properties": {"radius": NUMBER, "kind": {"type": "string", "enum": ["circle"], "default": "circle"}},
        "required": ["radius"],
    },
    "Colour": {"title": "Colour", "description": "A colour.", "type": "string", "enum": ["red", "blue"]},
    "Dog": {
        "title": "Dog",
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["Dog"]}, "good": {"type": "boolean"}},
        "required": ["type", "good"],
    },
    "Drawing": {
        "title": "Drawing",
        "type": "object",
        "properties": {
            "firstShape": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
            "otherShapes": {
                "type": "array",
                "items": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
                "default": [],
            },
        },
        "required": ["firstShape"],
        "additionalProperties": False,
    },
    "Level": {"title": "Level", "type": "integer", "enum": [1, 2]},
    "LimitedOptions": {
        "title": "LimitedOptions",
        "type": "object",
        "properties": {"size": {"type": "integer", "minimum": 0, "description": "how much"}},
        "required": ["size"],
    },
    "LimitedPair": {
        "title": "LimitedPair",
        "type": "array",
        "prefixItems": [{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1, "default": "a"}],
        "minItems": 1,
        "maxItems": 2,
    },
    "Mixed": {
        "title": "Mixed",
        "description": "All kinds of classes as fields.",
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/StructPoint"},
            "b": {"$ref": "#/$defs/AttrsPoint"},
            "c": {"$ref": "#/$defs/ModelPoint"},
            "d": {"$ref": "#/$defs/PydanticPoint"},
            "e": {"$ref": "#/$defs/Pair"},
        },
        "required": ["a", "b", "c", "d", "e"],
    },
    "ModelCat": {
        "properties": {
            "kind": {"const": "cat", "title": "Kind", "type": "string"},
            "lives": {"title": "Lives", "type": "integer"},
        },
        "required": ["kind", "lives"],
        "title": "ModelCat",
        "type": "object",
    },
    "ModelDog": {
        "properties": {
            "kind": {"const": "dog", "title": "Kind", "type": "string"},
            "good": {"title": "Good", "type": "boolean"},
        },
        "required": ["kind", "good"],
        "title": "ModelDog",
        "type": "object",
    },
    "ModelNode": {
        "properties": {
            "name": {"title": "Name", "type": "string"},
            "children": {"default": [], "items": {"$ref": "#/$defs/ModelNode"}, "title": "Children", "type": "array"},
        },
        "required": ["name"],
        "title": "ModelNode",
        "type": "object",
    },
    "ModelPoint": {
        "properties": {
            "x": {"description": "across", "title": "X", "type": "integer"},
            "y": {"default": 0, "title": "Y", "type": "integer"},
        },
        "required": ["x"],
        "title": "ModelPoint",
        "type": "object",
    },
    "Node": {
        "title": "Node",
        "type": "object",
        "properties": {"name": STRING, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []}},
        "required": ["name"],
    },
    "Options": {
        "title": "Options",
        "type": "object",
        "properties": {"deep": {"type": "boolean", "description": "how deep"}, "size": INTEGER},
    },
    "Pair": {
        "title": "Pair",
        "type": "array",
        "prefixItems": [{"type": "integer", "description": "across"}, {"type": "string", "default": "a"}],
        "minItems": 1,
        "maxItems": 2,
    },
    "Place": {
        "title": "Place",
        "type": "object",
        "properties": {
            "where": {"type": "string", "format": "path", "default": "a"},
            "colour": {"$ref": "#/$defs/Colour", "default": "red"},
        },
    },
    "Point": {
        "title": "Point",
        "type": "object",
        "properties": {"x": {"type": "integer", "description": "across"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    },
    "PydanticPoint": {
        "properties": {
            "x": {"title": "X", "type": "integer"},
            "why": {"default": 0, "title": "Why", "type": "integer"},
        },
        "required": ["x"],
        "title": "PydanticPoint",
        "type": "object",
    },
    "Ratio": {"title": "Ratio", "enum": [0.5, 1]},
    "Square": {
        "title": "Square",
        "type": "object",
        "properties": {"side": NUMBER, "kind": {"type": "string", "enum": ["square"], "default": "square"}},
        "required": ["side"],
    },
    "StructPoint": {
        "title": "StructPoint",
        "type": "object",
        "properties": {"x": {"type": "integer", "description": "across"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    },
    "Tree": {
        "title": "Tree",
        "description": "Refers to itself, and has a field that msgspec would not accept beside that.",
        "type": "object",
        "properties": {
            "label": {"type": "string", "minLength": 1},
            "below": {
                "type": "array",
                "items": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"$ref": "#/$defs/Circle"}]},
                "default": [],
            },
        },
        "required": ["label"],
    },
}
